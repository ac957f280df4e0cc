// Package attachment attaches prepared claims to a runtime's sandboxes and detaches them:
// the engine applies every topology of a claim in the pod's sandbox, or all of them are
// rolled back, and the claim's gate is open only while they are applied. A Keeper has three
// callers. The runtime's side (reconcile/pod/nriplugin) reports that a sandbox was created
// (Attach), that a container is about to be created (Admit), that a sandbox stops (Detach),
// and which sandboxes exist (Synchronize). The claims' side (reconcile/pod/draplugin)
// reports that a claim is no longer prepared (Withdraw). Calls may be missing or out of
// order: each call reads the record under the claim's lock, and a sandbox that has stopped
// is never attached again. Everything is keyed by the runtime's sandbox ID, so a late call
// for an old sandbox does not touch the new one of the same pod.
//
// An attachment belongs to the Keeper, not to the hook that requested it. When the hook's
// time is over, it continues in the background while the gate is closed, one attempt per
// sandbox, with a time limit of its own; a failure is rolled back, reported and retried.
// The end of the sandbox, of the claim or of the agent cancels it.
//
// A third side (reconcile/pod/rollout) applies a later generation of a topology to a
// running pod (Update). The gate stays open meanwhile, and no container is admitted between
// two generations. Run does what takes longer than a hook may, and periodically searches
// for sandboxes whose end was not reported: a restarted runtime does not report it.
//
// Nothing here queries the API server or runs a program. Stopping leaves all pods as
// they are.
package attachment
