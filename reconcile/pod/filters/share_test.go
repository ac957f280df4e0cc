package filters

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/qos"
	"github.com/plumbline/plumbline/qos/qostest"
)

// knownShare says that TestBoundedShare does not hold yet.
const knownShare = true

// TestBoundedShare holds what an agent keeps of one namespace, whatever its objects are.
func TestBoundedShare(t *testing.T) {
	const most = 3 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, n := crowded(t, 2)
	for i := range qos.MaxObjects / 8 {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(qostest.Largest("ns", i))
		if err != nil {
			t.Fatal(err)
		}
		n.put(objectOf(&unstructured.Unstructured{Object: content}))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	said := fmt.Sprintf("the objects of a namespace take %d KiB of an agent", took>>10)
	t.Log(said)
	if (took < most) == knownShare {
		t.Errorf("%s; known to be more than %d KiB: %t", said, most>>10, knownShare)
	}
	runtime.KeepAlive(n)
}
