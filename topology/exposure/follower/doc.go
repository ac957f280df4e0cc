// Package follower is the agent's side of DeviceExposurePolicies: it follows the
// policies, the labels of the agent's own node, and what other drivers publish on it,
// and writes the node's DeviceExposureReport.
//
// Until it has read all of that nothing can be decided: an agent that starts publishes
// no device that a policy withholds. A cluster without the CRD has no policies.
//
// The way in is New and Run; a publisher calls Decide, Others and Offered.
package follower
