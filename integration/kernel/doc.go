// Package kernel holds the engine's laws against a real kernel, in the virtual
// machine of this folder's parent: for every case in testdata, applying makes
// the topology true, applying again writes nothing, releasing restores the
// start field by field, and so does every failure and every crash in between.
package kernel
