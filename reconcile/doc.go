// Package reconcile owns the loop that makes a topology come true in a sandbox
// and keeps it true: observe, plan, journal, apply, verify, and undo in reverse
// on failure. It decides when; what must hold comes from ops, and only a Domain
// touches the kernel. What other programs keep is an External's.
//
// Per sandbox it offers what CNI offers per step: Ensure (ADD), Check (CHECK),
// Release (DEL). See docs/adr/0002.
package reconcile
