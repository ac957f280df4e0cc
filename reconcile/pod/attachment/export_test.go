package attachment

// Retried returns how many failures of a sandbox are remembered.
func (k *Keeper) Retried(sandbox string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queue.NumRequeues(sandbox)
}
