// Package netns stands for the real one.
package netns

// Set changes the thread's namespace.
func Set(int) error { return nil }
