package admission

// The objects that register the webhook, and what the two fail as.
const (
	// Definitions covers topologies, policies and schemas. An invalid one harms every pod
	// that uses it, and administrators can retry: nothing is allowed unchecked (Fail).
	Definitions = "plumbline-definitions"
	// Requests covers claims, templates and classes, and NetworkQoS objects if they are
	// enforced. An invalid claim harms only its own pod, the node reports the same later, and
	// claims of other drivers must not depend on this webhook: they are allowed when it does not
	// answer (Ignore). An invalid NetworkQoS has no effect, and its condition says so.
	Requests = "plumbline-requests"
)

// timeout of an answer, in seconds. An answer takes milliseconds; clients of the API server
// should not wait long for a webhook that is down.
const timeout = 5
