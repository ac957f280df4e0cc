// Package kernel holds the engine's laws against a real kernel, in the virtual
// machine of this folder's parent: for every case in testdata, applying makes
// the topology true, applying again writes nothing, releasing restores the
// start field by field, and so does every failure and every crash in between.
//
// It also holds what becomes of drift, row by row (TestDrift), that attach,
// repair, update and release survive whatever can happen to them (faults_test.go,
// accidents_test.go, with the tag soak), both at random (TestRandom; see
// integration/README.md), and that a pod reaches nothing but its own namespace
// whatever it does there (TestHostilePod, with the tag soak).
// Nothing here knows how the engine does it: it looks at the kernel, the journal
// and what the engine says.
package kernel
