package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

func overWebSocket(ctx context.Context, config *rest.Config) error {
	return executes(ctx, config, "websocket", func(request *rest.Request) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	})
}

func overSPDY(ctx context.Context, config *rest.Config) error {
	return executes(ctx, config, "spdy", func(request *rest.Request) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	})
}

// executes runs a command in a Pod: input, both outputs, a failure that is told, and a call that is given up.
func executes(ctx context.Context, config *rest.Config, name string, make func(*rest.Request) (remotecommand.Executor, error)) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := start(ctx, client, name); err != nil {
		return err
	}
	run := func(ctx context.Context, script, input string) (string, string, error) {
		options := &corev1.PodExecOptions{Command: []string{"sh", "-c", script}, Stdin: true, Stdout: true, Stderr: true}
		request := client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(name).
			SubResource("exec").VersionedParams(options, scheme.ParameterCodec)
		executor, err := make(request)
		if err != nil {
			return "", "", err
		}
		var out, complaints bytes.Buffer
		streams := remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &complaints}
		err = executor.StreamWithContext(ctx, streams)
		return out.String(), complaints.String(), err
	}

	large := strings.Repeat("0123456789abcdef", 1<<14)
	out, complaints, err := run(ctx, "cat; echo oops >&2", large)
	if err != nil || out != large || complaints != "oops\n" {
		return fmt.Errorf("%d bytes came back of %d, and %q: %v", len(out), len(large), complaints, err)
	}
	_, _, err = run(ctx, "exit 42", "")
	var failed exec.CodeExitError
	if !errors.As(err, &failed) || failed.Code != 42 {
		return fmt.Errorf("exit code 42 came as %v", err)
	}
	brief, cancel := context.WithCancel(ctx)
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, _, err = run(brief, "sleep 1000", ""); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a call that was given up ended with %v", err)
	}
	return client.CoreV1().Pods(namespace).Delete(ctx, name, *metav1.NewDeleteOptions(0))
}

func start(ctx context.Context, client kubernetes.Interface, name string) error {
	container := corev1.Container{Name: "main", Image: "host", Command: []string{"sleep", "1000"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container}},
	}
	pods := client.CoreV1().Pods(namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	runs := func(ctx context.Context) (bool, error) {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, runs)
}
