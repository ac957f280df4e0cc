// Package unix stands for the real one.
package unix

// Setns changes the thread's namespace.
func Setns(int, int) error { return nil }
