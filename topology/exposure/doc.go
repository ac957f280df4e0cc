// Package exposure says what DeviceExposurePolicies mean for the devices of a node.
//
// New reads and checks a policy, with one answer for the command line, admission,
// controller and node. A Set is the policies that count on one node, and Decide
// gives each device the policy that decides for it: data in, data out. Reports
// counts what came of it, for the status of the policies.
//
// Where the policies do not say clearly what applies to a device (one cannot be read
// or evaluated, or two of the same priority contradict each other), the device stays
// as it was: what was offered stays offered, and what was not is not. See
// docs/adr/0026.
package exposure
