package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/plumbline/plumbline/ops/fault"
	"github.com/plumbline/plumbline/topology/deviceclass"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Webhook decides. It needs the rights get, list and watch on all kinds it
// looks at: networktopologies, cnipluginschemas, deviceclasses.
type Webhook struct {
	// Reader is a cache with the indexes of deviceclass.Index: an answer takes some
	// look-ups, and no walk through all objects.
	Reader    client.Reader
	Contracts *deviceclass.Contracts
	// Users returns how many claims are allocated for a topology.
	Users func(name string, uid types.UID) int
}

// maxObject bounds what is looked at; the API server stores less.
const maxObject = 4 << 20

// Path is where the decisions are served, all of them.
const Path = "/validate"

// Register serves the decisions.
func (w *Webhook) Register(server webhook.Server) {
	server.Register(Path, &webhook.Admission{Handler: w})
}

// answer is nothing (allowed), or what is wrong or worth a warning.
type answer struct {
	problems []string // each of one line or more
	warnings []string
}

func (a *answer) wrong(err error) {
	if err != nil {
		a.problems = append(a.problems, err.Error())
	}
}

func (a *answer) warn(format string, args ...any) {
	a.warnings = append(a.warnings, fmt.Sprintf(format, args...))
}

// Handle implements admission.Handler. What cannot be decided is answered with
// an error, and the failure policy decides.
func (w *Webhook) Handle(ctx context.Context, r admission.Request) admission.Response {
	if r.Operation != admissionv1.Create && r.Operation != admissionv1.Update || r.SubResource != "" {
		return admission.Allowed("")
	}
	if n := len(r.Object.Raw); n > maxObject {
		return admission.Denied(fmt.Sprintf("the object has %d bytes, at most %d are looked at", n, maxObject))
	}
	a, err := w.decide(ctx, r)
	switch {
	case errors.As(err, new(*malformed)):
		return admission.Errored(http.StatusBadRequest, err)
	case err != nil:
		return admission.Errored(http.StatusInternalServerError, err)
	case len(a.problems) > 0:
		return admission.Denied(message(a.problems)).WithWarnings(a.warnings...)
	}
	return admission.Allowed("").WithWarnings(a.warnings...)
}

func (w *Webhook) decide(ctx context.Context, r admission.Request) (answer, error) {
	switch r.Kind.Group + "/" + r.Kind.Kind {
	case v1alpha1.GroupVersion.Group + "/" + v1alpha1.Kind:
		return w.topology(ctx, r)
	case schemav1alpha1.GroupVersion.Group + "/" + schemav1alpha1.Kind:
		return w.schema(ctx, r)
	case resourceapi.GroupName + "/DeviceClass":
		return w.class(ctx, r)
	case resourceapi.GroupName + "/ResourceClaim", resourceapi.GroupName + "/ResourceClaimTemplate":
		return w.claim(ctx, r)
	default:
		return answer{}, nil // registered for by mistake: nothing to say
	}
}

// message lays problems out behind "denied the request: ": one line as it is,
// more on lines of their own, indented, as seed 000 section 8.1 shows it.
func message(problems []string) string {
	text := strings.TrimRight(strings.Join(problems, "\n"), "\n")
	if !strings.Contains(text, "\n") {
		return text
	}
	return "\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}

// malformed is an object that is none of its kind.
type malformed struct{ err error }

func (m *malformed) Error() string { return "decode the object: " + m.err.Error() }
func (m *malformed) Unwrap() error { return m.err }

func decode(r admission.Request, into any) error {
	if err := json.Unmarshal(r.Object.Raw, into); err != nil {
		return &malformed{err}
	}
	return nil
}

// get reads an object from the cache, which is not to be changed; found is false
// when there is none.
func (w *Webhook) get(ctx context.Context, name string, into client.Object) (found bool, err error) {
	err = w.Reader.Get(ctx, client.ObjectKey{Name: name}, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// invalid reports whether an error is the user's.
func invalid(err error) bool { return fault.Of(err) == fault.Invalid }
