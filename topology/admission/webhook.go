package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	qosv1alpha1 "github.com/plumbline/plumbline/qos/v1alpha1"
	"github.com/plumbline/plumbline/topology/controller"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/exposure"
	"github.com/plumbline/plumbline/topology/fault"
	schemav1alpha1 "github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// Webhook decides. It needs the permissions get, list and watch on all kinds that it reads:
// networktopologies, deviceexposurepolicies, addresspools, cnipluginschemas, deviceclasses.
type Webhook struct {
	// AllNetworkQoS says that nothing but plumbline enforces NetworkQoS objects.
	AllNetworkQoS bool
	// PodNetwork says that agents make the primary network of pods where a topology has the role primary.
	PodNetwork bool

	reader    client.Reader
	contracts *controller.Contracts
	policies  *exposure.Compiled
	users     func(name string, uid types.UID) int

	judging *semaphore.Weighted
	waiting *semaphore.Weighted // for judging, or judged
}

// maxJudging is how many topologies are validated at a time, and maxWaiting how many may wait for that: each
// holds memory meanwhile, which claims need.
const (
	maxJudging = 2
	maxWaiting = 64
)

// New returns a Webhook. reader is a cache with the indexes of controller.Index, so that an
// answer takes some lookups and no scan of all objects; users returns how many claims are
// allocated for a topology.
func New(reader client.Reader, contracts *controller.Contracts, policies *exposure.Compiled,
	users func(name string, uid types.UID) int,
) *Webhook {
	return &Webhook{
		reader: reader, contracts: contracts, policies: policies, users: users, judging: semaphore.NewWeighted(maxJudging),
		waiting: semaphore.NewWeighted(maxJudging + maxWaiting),
	}
}

// maxObject bounds what is decoded; the API server stores less.
const maxObject = 4 << 20

// Path is the URL path of all decisions.
const Path = "/validate"

// Register serves the decisions.
func (w *Webhook) Register(server webhook.Server) {
	server.Register(Path, bounded(&webhook.Admission{Handler: w}))
}

// answer holds problems, which refuse the request, and warnings.
type answer struct {
	problems []string // each of one line or more
	warnings []string
}

func (a *answer) refuse(err error) {
	if err != nil {
		a.problems = append(a.problems, err.Error())
	}
}

func (a *answer) warn(format string, args ...any) {
	if len(a.warnings) < maxWarnings {
		a.warnings = append(a.warnings, excerpt.Of(fmt.Sprintf(format, args...), maxWarning))
	}
}

// Bounds of an answer, in bytes and numbers.
const (
	maxMessage  = 16 << 10
	maxWarning  = 1 << 10
	maxWarnings = 16
)

// Handle implements admission.Handler. An object that cannot be checked is refused if it is a
// definition, and allowed with a warning if it is a request: the API server would treat an
// error in the answer as a refusal, whatever the failure policy.
func (w *Webhook) Handle(ctx context.Context, r admission.Request) (response admission.Response) {
	if r.Operation != admissionv1.Create && r.Operation != admissionv1.Update || r.SubResource != "" {
		return admission.Allowed("")
	}
	defer func() {
		if p := recover(); p != nil {
			log.FromContext(ctx).Error(fmt.Errorf("panic: %v", p), "not decided", "stack", string(debug.Stack()))
			response = undecided(r, errors.New("a fault of the webhook, see its log"))
		}
	}()
	a, err := w.decide(ctx, r)
	switch {
	case err != nil:
		log.FromContext(ctx).Error(err, "not decided")
		return undecided(r, err)
	case len(a.problems) > 0:
		return refused(a)
	}
	return admission.Allowed("").WithWarnings(a.warnings...)
}

// refused is a refusal that clients tell from those of the API server and of other webhooks by its cause.
func refused(a answer) admission.Response {
	response := admission.Denied(message(a.problems)).WithWarnings(a.warnings...)
	response.Result.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: v1alpha1.CauseRefused}}}
	return response
}

// defines reports whether an object is a definition (see registration.go).
func defines(r admission.Request) bool {
	return r.Kind.Group == v1alpha1.GroupVersion.Group || r.Kind.Group == schemav1alpha1.GroupVersion.Group
}

func undecided(r admission.Request, err error) admission.Response {
	switch {
	case !defines(r):
		return admission.Allowed("").WithWarnings(excerpt.Of(fmt.Sprintf("%s %q passes unchecked, its node will check it: %v", r.Kind.Kind,
			r.Name, err), maxWarning))
	case errors.As(err, new(*malformed)):
		return admission.Errored(http.StatusBadRequest, err)
	}
	return admission.Errored(http.StatusInternalServerError, err)
}

func (w *Webhook) decide(ctx context.Context, r admission.Request) (answer, error) {
	if n := len(r.Object.Raw); n > maxObject {
		return answer{}, &malformed{fmt.Errorf("it has %d bytes, at most %d are read", n, maxObject)}
	}
	switch r.Kind.Group + "/" + r.Kind.Kind {
	case v1alpha1.GroupVersion.Group + "/" + v1alpha1.Kind:
		return w.definition(ctx, func() (answer, error) { return w.topology(ctx, r) })
	case v1alpha1.GroupVersion.Group + "/" + v1alpha1.PolicyKind:
		return w.definition(ctx, func() (answer, error) { return w.policy(ctx, r) })
	case v1alpha1.GroupVersion.Group + "/" + v1alpha1.AddressPoolKind:
		return w.pool(ctx, r)
	case schemav1alpha1.GroupVersion.Group + "/" + schemav1alpha1.Kind:
		return w.definition(ctx, func() (answer, error) { return w.schema(ctx, r) })
	case resourceapi.GroupName + "/DeviceClass":
		return w.class(ctx, r)
	case resourceapi.GroupName + "/ResourceClaim", resourceapi.GroupName + "/ResourceClaimTemplate":
		return w.claim(ctx, r)
	case qosv1alpha1.GroupVersion.Group + "/" + qosv1alpha1.Kind:
		return w.networkQoS(r)
	default:
		return answer{}, nil // registered by mistake: allowed
	}
}

// definition validates a topology or a schema, which may take a core for seconds: few at a
// time, so that claims are answered meanwhile.
func (w *Webhook) definition(ctx context.Context, judge func() (answer, error)) (answer, error) {
	if !w.waiting.TryAcquire(1) {
		return answer{}, fmt.Errorf("the webhook is busy with other topologies: %d wait", maxWaiting)
	}
	defer w.waiting.Release(1)
	if err := w.judging.Acquire(ctx, 1); err != nil {
		return answer{}, fmt.Errorf("the webhook is busy with other topologies: %w", err)
	}
	defer w.judging.Release(1)
	return judge()
}

// message formats problems to follow "denied the request: ": one line as it is, more on
// lines of their own, indented.
func message(problems []string) string {
	text := excerpt.Of(strings.TrimRight(strings.Join(problems, "\n"), "\n"), maxMessage)
	if !strings.Contains(text, "\n") {
		return text
	}
	return "\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}

// malformed is the error of an object that cannot be decoded as its kind.
type malformed struct{ err error }

func (m *malformed) Error() string { return "decode the object: " + m.err.Error() }
func (m *malformed) Unwrap() error { return m.err }

func decode[T any](r admission.Request) (*T, error) {
	o := new(T)
	if err := json.Unmarshal(r.Object.Raw, o); err != nil {
		return nil, &malformed{err}
	}
	return o, nil
}

// get reads an object from the cache, which is not to be changed; found is false
// when there is none.
func (w *Webhook) get(ctx context.Context, name string, into client.Object) (found bool, err error) {
	err = w.reader.Get(ctx, client.ObjectKey{Name: name}, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// invalid reports whether an error is the user's.
func invalid(err error) bool { return fault.Of(err) == fault.Invalid }
