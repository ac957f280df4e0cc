package claimstatus

import (
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plumbline/plumbline/topology"
)

// messageMax bounds the message of a condition and of an Event, which the API limits to
// 32768 and 1024 bytes.
const messageMax = 1000

// raw encodes an entry's data, whose size the API limits. Results that do not fit are left
// out, the least important first: the routes, then what a step took over from the steps
// below it, then the last steps. The note says so.
func raw(d data) *runtime.RawExtension {
	if b, ok := encode(d); ok {
		return b
	}
	full := d.Steps
	d.Note = "routes are left out to save space"
	d.Steps = shorten(full, func(r *topology.Result) { r.Routes = nil })
	if b, ok := encode(d); ok {
		return b
	}
	d.Note = "routes and inherited interfaces are left out to save space"
	d.Steps = shorten(full, func(r *topology.Result) { *r = lastOnly(*r) })
	for all := len(d.Steps); len(d.Steps) > 0; {
		if b, ok := encode(d); ok {
			return b
		}
		d.Steps = d.Steps[:len(d.Steps)-1]
		d.Note = fmt.Sprintf("%d of %d steps, routes and inherited interfaces are left out to save space",
			all-len(d.Steps), all)
	}
	b, _ := encode(d)
	return b
}

func encode(d data) (*runtime.RawExtension, bool) {
	b, err := json.Marshal(d)
	if err != nil { // cannot fail: strings and numbers only
		return nil, false
	}
	return &runtime.RawExtension{Raw: b}, len(b) <= resourceapi.AllocatedDeviceStatusDataMaxLength
}

// shorten returns a copy of results that was changed.
func shorten(steps []topology.StepResult, change func(*topology.Result)) []topology.StepResult {
	out := make([]topology.StepResult, len(steps))
	for i, s := range steps {
		out[i] = s
		change(&out[i].Result)
	}
	return out
}

// lastOnly keeps the interface that a step made, and its addresses.
func lastOnly(r topology.Result) topology.Result {
	out := topology.Result{Devices: r.Devices}
	last, ok := r.Last()
	if !ok {
		return out
	}
	out.Interfaces = []topology.Interface{last}
	for _, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
			continue
		}
		if of := r.Interfaces[*ip.Interface]; of.Name == last.Name && of.Sandbox == last.Sandbox {
			ip.Interface = new(0)
			out.IPs = append(out.IPs, ip)
		}
	}
	return out
}
