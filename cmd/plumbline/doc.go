// Command plumbline describes, plans, applies and watches chained container
// networks. Without a cluster it is a command line (validate, plan, apply,
// status, delete, graph, devices) and a node daemon (run).
//
// There is one file per subcommand. A subcommand reads its flags, wires packages
// together (engine.go), prints what they return (text.go, json.go) and turns it
// into an exit status: 0 done or nothing to do, 1 an error, 2 something differs,
// 130 interrupted.
package main
