// Package attachment owns how prepared claims and a runtime's sandboxes come
// together and part: every topology of a claim is made true by the engine in the
// pod's sandbox, or all of them are undone, and the claim's gate is open only
// while they are true.
//
// A Keeper is asked from two sides. The runtime's side (reconcile/pod/nriplugin) says
// that a sandbox has come (Attach), that a container is about to be made (Admit),
// that a sandbox stops (Detach), and which there are (Synchronize). The claims'
// side (reconcile/pod/draplugin) says that a claim is no longer prepared (Withdraw).
// Neither side can be relied on to speak, or to speak in order: each call looks
// at the record under the claim's lock, and a sandbox that has stopped is never
// attached again. Everything is keyed by the runtime's sandbox ID, so what comes
// late for an old sandbox does not touch the new one of the same pod.
//
// An attachment belongs to the Keeper, not to the hook that asked for it. When the
// hook has no time left it goes on behind the gate, one attempt per sandbox, with a
// time limit of its own; a failure is rolled back, reported and tried again. The end
// of the sandbox, of the claim or of the agent cancels it.
//
// A third side (reconcile/pod/rollout) brings a later generation of a topology to a
// pod that runs (Update). The gate stays open meanwhile, and no container is
// admitted between two generations.
//
// Run does what a hook has no time for, and from time to time looks for sandboxes
// whose end nobody told: a runtime that was restarted does not tell it.
//
// No API server is asked here and no program is run. Stopping leaves all pods as
// they are.
package attachment
