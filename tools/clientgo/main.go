// Command clientgo does with an API server what Go programs do, by an unchanged client-go, and prints a line for
// each thing that worked.
//
//	KUBECONFIG=… clientgo everything
//	KUBECONFIG=… clientgo lead NAME      # until it is killed; prints when it leads
//
// Tests of asb run it; tools/clientgo/build builds it.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const namespace = "default"

// What clients wait for comes within this, or never.
const patience = 60 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	if len(arguments) == 2 && arguments[0] == "lead" {
		return lead(context.Background(), config, arguments[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, story := range []struct {
		name string
		play func(context.Context, *rest.Config) error
	}{
		{"typed objects in protobuf", typed},
		{"updates of objects written by hand", updated},
		{"shared informers with a streamed list", informers},
		{"dynamic client and its informer", dynamically},
		{"exec over WebSocket", overWebSocket},
		{"exec over SPDY", overSPDY},
	} {
		if err := story.play(ctx, config); err != nil {
			return fmt.Errorf("%s: %w", story.name, err)
		}
		fmt.Println(story.name)
	}
	return nil
}

// requests notes what a client asks for.
type requests struct {
	next http.RoundTripper
	lock sync.Mutex
	all  []string
}

func noting(config *rest.Config) (*rest.Config, *requests) {
	noted := &requests{}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		noted.next = next
		return noted
	})
	return config, noted
}

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err == nil {
		r.lock.Lock()
		defer r.lock.Unlock()
		line := fmt.Sprintf("%d %s %s sent as %q", response.StatusCode, request.Method, request.URL.RequestURI(),
			request.Header.Get("Content-Type"))
		r.all = append(r.all, line)
	}
	return response, err
}

// have tells whether a request was made that has all these words.
func (r *requests) have(words ...string) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
next:
	for _, request := range r.all {
		for _, word := range words {
			if !strings.Contains(request, word) {
				continue next
			}
		}
		return true
	}
	return false
}
