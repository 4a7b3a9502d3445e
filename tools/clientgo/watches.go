package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

var sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

// informers keep a cache by a watch that begins with a list: it has what was there, what is made and what goes.
func informers(ctx context.Context, config *rest.Config) error {
	config, noted := noting(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	for _, name := range []string{"before", "kept"} {
		object := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := maps.Create(ctx, &object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	factory := coreinformers.NewSharedInformerFactoryWithOptions(client, 0, coreinformers.WithNamespace(namespace))
	defer factory.Shutdown()
	defer cancel()
	informer := factory.Core().V1().ConfigMaps().Informer()
	if err := begin(ctx, factory.Start, informer); err != nil {
		return err
	}
	if !noted.have("200 GET", "/configmaps?", "sendInitialEvents=true", "watch=true") {
		return fmt.Errorf("the list was not streamed: %v", noted.all)
	}
	if _, there, _ := informer.GetStore().GetByKey(namespace + "/before"); !there {
		return errors.New("the cache said that it has everything, and has not")
	}
	if err := maps.Delete(ctx, "before", metav1.DeleteOptions{}); err != nil {
		return err
	}
	patch := []byte(`{"data":{"a":"b"}}`)
	if _, err := maps.Patch(ctx, "kept", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if err := until(ctx, informer, "before", func(object any) bool { return object == nil }); err != nil {
		return err
	}
	changed := func(object any) bool { return object.(*corev1.ConfigMap).Data["a"] == "b" }
	if err := until(ctx, informer, "kept", changed); err != nil {
		return err
	}
	return maps.Delete(ctx, "kept", metav1.DeleteOptions{})
}

// dynamically uses our own kinds without their types, until a Sandbox is Ready and gone again.
func dynamically(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, namespace, nil)
	defer factory.Shutdown()
	defer cancel()
	informer := factory.ForResource(sandboxes).Informer()
	if err := begin(ctx, factory.Start, informer); err != nil {
		return err
	}
	container := map[string]any{"name": "main", "image": "host", "command": []any{"sleep", "1000"}}
	spec := map[string]any{"terminationGracePeriodSeconds": int64(0), "containers": []any{container}}
	sandbox := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": sandboxes.GroupVersion().String(), "kind": "Sandbox", "metadata": map[string]any{"name": "dynamic"},
		"spec": map[string]any{"podTemplate": map[string]any{"spec": spec}},
	}}
	objects := client.Resource(sandboxes).Namespace(namespace)
	options := metav1.ApplyOptions{FieldManager: "clientgo"}
	if _, err := objects.Apply(ctx, "dynamic", sandbox, options); err != nil {
		return err
	}
	if err := until(ctx, informer, "dynamic", ready); err != nil {
		return err
	}
	if err := objects.Delete(ctx, "dynamic", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return until(ctx, informer, "dynamic", func(object any) bool { return object == nil })
}

func ready(object any) bool {
	if object == nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(object.(*unstructured.Unstructured).Object, "status", "conditions")
	for _, condition := range conditions {
		condition := condition.(map[string]any)
		if condition["type"] == "Ready" && condition["status"] == "True" {
			return true
		}
	}
	return false
}

func begin(ctx context.Context, start func(<-chan struct{}), informer cache.SharedIndexInformer) error {
	start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the cache never had everything")
	}
	return nil
}

// until waits for a state of an object in the cache; nil stands for none.
func until(ctx context.Context, informer cache.SharedIndexInformer, name string, is func(any) bool) error {
	look := func(context.Context) (bool, error) {
		object, exists, err := informer.GetStore().GetByKey(namespace + "/" + name)
		if !exists {
			object = nil
		}
		return err == nil && is(object), err
	}
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, look); err != nil {
		return fmt.Errorf("the cache never saw the change of %s: %w", name, err)
	}
	return nil
}
