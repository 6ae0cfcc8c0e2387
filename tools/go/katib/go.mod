module trialpod.dev/tools/go/katib

go 1.26.8

require github.com/kubeflow/katib v0.19.0
