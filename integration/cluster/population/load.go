package population

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// batch is how many objects are written at a time; etcd takes 128.
const batch = 100

// Load writes objects to the etcd at a URL, and returns how many.
func Load(ctx context.Context, etcd string, objects iter.Seq2[client.Object, error]) (int, error) {
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var puts []operation
	total := 0
	for o, err := range objects {
		if err != nil {
			return total, err
		}
		key, err := keyOf(o)
		if err != nil {
			return total, err
		}
		value, err := encode(encoder, o)
		if err != nil {
			return total, fmt.Errorf("encode %q: %w", key, err)
		}
		puts = append(puts, operation{Put: put{Key: []byte(key), Value: value}})
		if total++; len(puts) == batch {
			if err := write(ctx, etcd, puts); err != nil {
				return total, err
			}
			puts = puts[:0]
		}
	}
	return total, write(ctx, etcd, puts)
}

// keyOf is where an API server keeps an object.
func keyOf(o client.Object) (string, error) {
	switch o.(type) {
	case *corev1.Namespace:
		return "/registry/namespaces/" + o.GetName(), nil
	case *v1alpha1.NetworkTopology:
		return "/registry/" + v1alpha1.GroupVersion.Group + "/networktopologies/" + o.GetName(), nil
	case *resourceapi.DeviceClass:
		return "/registry/deviceclasses/" + o.GetName(), nil
	case *resourceapi.ResourceClaim:
		return "/registry/resourceclaims/" + o.GetNamespace() + "/" + o.GetName(), nil
	case *resourceapi.ResourceSlice:
		return "/registry/resourceslices/" + o.GetName(), nil
	}
	return "", fmt.Errorf("%T has no place in etcd here", o)
}

// encode is how an API server keeps an object: custom ones as JSON.
func encode(encoder runtime.Encoder, o client.Object) ([]byte, error) {
	if _, custom := o.(*v1alpha1.NetworkTopology); custom {
		return json.Marshal(o)
	}
	var b bytes.Buffer
	err := encoder.Encode(o, &b)
	return b.Bytes(), err
}

// operation and put are those of etcd's API, of which bytes are base64 in JSON.
type operation struct {
	Put put `json:"request_put"`
}

type put struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

func write(ctx context.Context, etcd string, puts []operation) error {
	body, err := json.Marshal(map[string][]operation{"success": puts})
	if err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcd+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("write to etcd: %w", err)
	}
	defer answer.Body.Close()
	if said, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("write to etcd: %s: %s", answer.Status, said)
	}
	return nil
}
