module trialpod.dev/tools/go/kuberay

go 1.26.8

require github.com/ray-project/kuberay/ray-operator v1.6.1
