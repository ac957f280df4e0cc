// Package journal stands for the real one.
package journal

// Known is here to be imported.
const Known = "journal"
