// Package admission refuses objects that could not work when they are written:
// NetworkTopologies, DeviceExposurePolicies, CNIPluginSchemas, DeviceClasses with config of
// ours, and ResourceClaims and ResourceClaimTemplates that request a topology's devices.
//
// It decides with the code the node and the controller use (topology.Validate,
// controller.Judge, claim.Requests and Mismatch), so that all report the same errors with
// the same text, and every answer contains all problems. It is a convenience and no
// protection: the node checks again, and a claim is allowed when the webhook does not
// answer (see Webhooks for the failure policies). Webhook decides, Register serves the
// decisions, Webhooks returns the registrations at the API server, and Certificates
// maintains the serving certificate.
package admission
