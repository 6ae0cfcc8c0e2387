// network-policies enforces NetworkPolicies in the test cluster, whose CNI plugin does not: kube-router's controller,
// which writes iptables rules and IP sets. It removes them on SIGTERM.
//
// Both nodes of that cluster share one network namespace, so one controller stands for all nodes.
package main

import (
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("network-policies: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: network-policies KUBECONFIG NODE SERVICE_CIDR")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, node, serviceCIDR string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	rest.QPS, rest.Burst = 100, 200
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.ClusterIPCIDRs = []string{serviceCIDR}
	config.EnableIPv4, config.EnableIPv6 = true, false
	config.HostnameOverride = node
	config.IPTablesSyncPeriod = 5 * time.Second

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()

	iptables, ipsets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets,
	)
	if err != nil {
		return err
	}
	// It looks after the pods whose host is its own.
	host, err := addressOf(client, node)
	if err != nil {
		return err
	}
	if err := pods.SetTransform(func(object any) (any, error) {
		if pod, ok := object.(*core.Pod); ok && pod.Status.HostIP != "" {
			pod.Status.HostIP = host
		}
		return object, nil
	}); err != nil {
		return err
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	if _, err := pods.AddEventHandler(controller.PodEventHandler); err != nil {
		return err
	}
	if _, err := namespaces.AddEventHandler(controller.NamespaceEventHandler); err != nil {
		return err
	}
	if _, err := policies.AddEventHandler(controller.NetworkPolicyEventHandler); err != nil {
		return err
	}

	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, stop, &running)

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	close(stop)
	running.Wait()
	controller.Cleanup()
	return nil
}
