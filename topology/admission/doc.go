// Package admission refuses what could not work at the moment it is written:
// NetworkTopologies, DeviceExposurePolicies, CNIPluginSchemas, DeviceClasses with config of ours, and
// ResourceClaims and ResourceClaimTemplates that request a topology's devices.
//
// It decides with the code the node and the controller use (topology.Validate,
// controller.Judge, claim.Requests and Mismatch), so that all say the same in
// the same words, and every answer carries everything that is wrong. It is a
// convenience and no guard: the node checks again, and a claim passes when nobody
// answers (Webhooks says which policy is chosen for what, and why).
//
// Webhook holds the decisions, Register serves them, Webhooks is how they are
// registered at the API server, and Certificates holds the certificate they are
// served with.
package admission
