package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// Objects as people write them: with empty fields, and quantities that Go spells differently. Their specs cannot change,
// so an update is refused when reading and writing them back changes more than the label.
var byHand = map[string]string{
	"pods": `{"metadata": {"name": "by-hand"}, "spec": {"volumes": [], "nodeSelector": {}, "hostname": "",
		"containers": [{"name": "main", "image": "host", "command": ["sleep", "1000"], "args": [], "stdin": false,
			"env": [{"name": "EMPTY", "value": ""}], "volumeMounts": [],
			"resources": {"limits": {"cpu": 1, "memory": "1024Mi"}, "requests": {"cpu": "10m", "memory": "0.0625Gi"}}}]}}`,
	"services": `{"metadata": {"name": "by-hand", "labels": {}}, "spec": {"selector": {"app": "web"},
		"ports": [{"port": 80, "name": ""}], "externalIPs": [], "publishNotReadyAddresses": false}}`,
	"persistentvolumeclaims": `{"metadata": {"name": "by-hand"}, "spec": {"accessModes": ["ReadWriteOnce"],
		"volumeName": "", "resources": {"requests": {"storage": "1024Mi"}}}}`,
}

// updated writes objects by hand, reads them with their types, and writes them back in protobuf with one more label.
func updated(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.ContentType = protobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	core := client.CoreV1()
	for resource, object := range byHand {
		create := core.RESTClient().Post().Namespace(namespace).Resource(resource)
		create = create.SetHeader("Content-Type", "application/json").Body([]byte(object))
		if err := create.Do(ctx).Error(); err != nil {
			return fmt.Errorf("create %s: %w", resource, err)
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			var fresh runtime.Object
			switch resource {
			case "pods":
				fresh = &corev1.Pod{}
			case "services":
				fresh = &corev1.Service{}
			default:
				fresh = &corev1.PersistentVolumeClaim{}
			}
			get := core.RESTClient().Get().Namespace(namespace).Resource(resource).Name("by-hand")
			if err := get.Do(ctx).Into(fresh); err != nil {
				return err
			}
			fresh.(metav1.Object).SetLabels(map[string]string{"seen": "yes"})
			put := core.RESTClient().Put().Namespace(namespace).Resource(resource).Name("by-hand")
			return put.Body(fresh).Do(ctx).Error()
		})
		if err != nil {
			return fmt.Errorf("update %s: %w", resource, err)
		}
		remove := core.RESTClient().Delete().Namespace(namespace).Resource(resource).Name("by-hand")
		if err := remove.Do(ctx).Error(); err != nil {
			return fmt.Errorf("delete %s: %w", resource, err)
		}
	}
	return nil
}
