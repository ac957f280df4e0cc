package filters

import (
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// TestBoundedShare holds what an agent keeps of one namespace, whatever its objects are.
func TestBoundedShare(t *testing.T) {
	const most = 3 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, n := crowded(t, 2)
	for i := range qos.MaxObjects / 4 {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(qostest.Largest("ns", i))
		if err != nil {
			t.Fatal(err)
		}
		n.put(objectOf(&unstructured.Unstructured{Object: content}))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("the objects of a namespace take %d KiB of an agent, which enforces %d", took>>10, len(n.known))
	if took > most || len(n.known) == 0 {
		t.Errorf("they may take %d KiB", most>>10)
	}
	runtime.KeepAlive(n)
}
