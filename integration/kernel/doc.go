// Package kernel holds the engine's laws against a real kernel, in the virtual machine
// of this folder's parent: for every case in testdata, the topology is applied,
// applying again writes nothing, releasing restores the start field by field, and so
// does every failure and every crash in between.
//
// It also holds how drift is handled, row by row (TestDrift), that attach, repair,
// update and release survive all faults (faults_test.go, accidents_test.go, with the
// tag soak), both at random (TestRandom; see integration/README.md), and that a pod
// reaches nothing but its own namespace whatever it does there (TestHostilePod, with
// the tag soak). Nothing here depends on how the engine does it: the tests read the
// kernel, the journal and the engine's reports.
package kernel
