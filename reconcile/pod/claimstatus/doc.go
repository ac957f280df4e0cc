// Package claimstatus reports the state of claims to users: in status.devices of the
// ResourceClaim, and as Events on the Pod and the claim.
//
// It owns the format of a topology's results in the status of a claim's devices, the
// conditions Ready and InSync, and the queue between the agent and the API server. It
// decides nothing and changes no network.
//
// A Reporter's methods never wait, so they may be called while a pod is being started.
// Run writes the reports later, and retries until that succeeds, with server-side apply
// under the driver's own name: entries of other drivers are not touched, those of ours
// without a report stay as they are, and an entry that would not change is not written.
// A claim that no longer exists, or that another one of the same name has replaced, is
// forgotten.
//
// A claim has entries only for the devices allocated in it. What a topology creates
// besides them (a bond, its VLANs) is in the data of the entries of the devices it is
// built on.
package claimstatus
