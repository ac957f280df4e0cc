package attachment

import "context"

// Retried returns how many failures of a sandbox are remembered.
func (k *Keeper) Retried(sandbox string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queue.NumRequeues(sandbox)
}

// Renew does what Run does for claims whose device nodes have changed.
func (k *Keeper) Renew(ctx context.Context) { k.renew(ctx) }

// Pending returns how many sandboxes wait for Run.
func (k *Keeper) Pending() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.todo)
}
