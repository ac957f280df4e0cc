// Package reconcile is the engine that applies a topology to a sandbox and repairs drift:
// observe, plan, journal, apply, verify, and roll back in reverse order on failure. It
// decides when to act; what is wanted comes from ops, and only a Domain changes the kernel.
// Objects that other programs hold belong to an External.
//
// Per sandbox it offers what CNI offers per step: Ensure (ADD), Check (CHECK),
// Release (DEL). See docs/adr/0002.
package reconcile
