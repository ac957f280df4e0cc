// Package claimstatus tells users what became of their claims: in
// status.devices of the ResourceClaim, and as Events on the Pod and the claim.
//
// It owns how the results of a topology's steps are written down for the
// devices of a claim, the conditions Ready and InSync, and the queue between
// the agent and the API server. It decides nothing and changes no network.
//
// A Reporter's methods never wait, so they may be called while a pod is being
// started. Run writes what they were told, later and again until it works,
// with server-side apply in the driver's own name: entries of other drivers are
// not touched, those of ours that nothing was said about stay as they are, and
// an entry that would not change is not written. A claim that is gone, or that
// another one of the same name has replaced, is forgotten.
//
// A claim has entries only for the devices allocated in it. What a topology
// makes besides them (a bond, its VLANs) stands in the entries of the devices
// it is built on, in their data.
package claimstatus
