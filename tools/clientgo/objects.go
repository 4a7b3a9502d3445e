package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// typed creates, reads, changes, conflicts, patches, lists and deletes.
func typed(ctx context.Context, config *rest.Config) error {
	config, noted := noting(config)
	config.ContentType = protobuf
	config.AcceptContentTypes = protobuf + ",application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "typed-", Labels: map[string]string{"from": "go"}},
		Data:       map[string]string{"one": "1"},
		BinaryData: map[string][]byte{"raw": {0, 255}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	stale := made.DeepCopy()
	made.Data["two"] = "2"
	if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err = maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("an update of what was read before is no conflict: %v", err)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		fresh, err := maps.Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		fresh.Data["three"] = "3"
		_, err = maps.Update(ctx, fresh, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"data":{"one":null}}`,
		types.StrategicMergePatchType: `{"data":{"four":"4"}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/data/five","value":"5"}]`,
	} {
		if _, err = maps.Patch(ctx, made.Name, kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "from=go", Limit: 1})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 || len(list.Items[0].Data) != 4 || len(list.Items[0].BinaryData["raw"]) != 2 {
		return fmt.Errorf("listed %v", list.Items)
	}
	uid := metav1.Preconditions{UID: &made.UID}
	if err = maps.Delete(ctx, made.Name, metav1.DeleteOptions{Preconditions: &uid}); err != nil {
		return err
	}
	if _, err = maps.Get(ctx, made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("it is still there: %v", err)
	}
	if !noted.have("201 POST", "/configmaps", protobuf) {
		return fmt.Errorf("nothing was sent in protobuf: %v", noted.all)
	}
	return nil
}
