// Package enforce decides by which backend the rules of a pod are enforced on each interface of a topology, filters of tc or
// rows of OVN, and has them compiled: for the agent, and for the command line, which reads the objects from files.
package enforce
