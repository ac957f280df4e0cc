package filters

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/plumbline/plumbline/integration/eventually"
)

// TestTurnsOfLists: while the objects of a namespace are listed, of which users may create any number, those of another one are listed
// after one page of these, and not after all: else no pod of the other one starts.
func TestTurnsOfLists(t *testing.T) {
	const pages = 8
	f, evil := crowded(t, 0)
	good, order := newNamespace(f, "good"), make(chan string, pages+1)
	waits := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, more := "good", ""
		if strings.Contains(r.URL.Path, "/namespaces/ns/") {
			name = "evil"
			if page := len(order); page == 0 {
				<-waits
				more = "1"
			} else if page < pages-1 {
				more = fmt.Sprint(page + 1)
				time.Sleep(10 * time.Millisecond) // the other one waits for longer than a mutex may be taken from it
			}
		}
		order <- name
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "k8s.ovn.org/v1alpha1", "kind": "NetworkQoSList", "metadata": {"resourceVersion": "7", "continue": %q}, "items": []}`, more)
	}))
	defer api.Close()
	client, err := dynamic.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	f.Client = client
	done := make(chan error, 2)
	go func() {
		_, err := evil.list(t.Context(), metav1.ListOptions{})
		done <- err
	}()
	eventually.True(t, time.Minute, "the first list is read", func() bool {
		free := f.reading.TryLock()
		if free {
			f.reading.Unlock()
		}
		return !free
	})
	go func() {
		_, err := good.list(t.Context(), metav1.ListOptions{})
		done <- err
	}()
	close(waits)
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	close(order)
	place := 0
	for name := range order {
		if name == "good" {
			break
		}
		place++
	}
	if place >= pages-1 {
		t.Errorf("it is listed after %d pages of the other one", place)
	}
}
