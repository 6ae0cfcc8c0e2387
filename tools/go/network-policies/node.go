package main

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func addressOf(client kubernetes.Interface, name string) (string, error) {
	node, err := client.CoreV1().Nodes().Get(context.Background(), name, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, address := range node.Status.Addresses {
		if address.Type == core.NodeInternalIP {
			return address.Address, nil
		}
	}
	return "", fmt.Errorf("node %s has no internal address", name)
}
