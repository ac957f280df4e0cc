// Package journal is the write-ahead log and the sandbox store: what survives
// a crash of plumbline or of the machine. Open returns a reconcile.Store.
//
// A directory holds one log per sandbox, named after its ID, and a lock file
// beside it while a process works on it. A log is lines of text:
//
//	1 8c3e1f06 {"record":{...}}
//	1 51b0a9d2 {"intend":[...]}
//
// that is the version, the CRC-32C of what follows, and either a whole record
// or changes that are about to be made. Reading a log means taking the last
// record and coalescing the intents after it into its history. Logs are only
// appended to, and replaced as a whole by rename when they have grown.
//
// The end of a log may be torn by a crash in the middle of an append: cut off, or with
// sectors that were not written. It is dropped, as the append had not returned, so none of
// its changes had begun (or it was no promise: Settle). A log that another version of
// plumbline has written is left alone, and is an error for who asks for it (package frame).
// Any other fault sets the file aside as NAME.damaged-N, for an operator, and is reported
// by List; it does not affect other sandboxes.
//
// The package decides nothing: when to write what is the engine's business.
package journal
