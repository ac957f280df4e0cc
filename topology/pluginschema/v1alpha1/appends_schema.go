//go:build ignore

// This program completes the CRD that controller-gen writes: no marker expresses "a number
// up to 65535, or a boolean". A structural schema cannot name two types either, so the
// value has none, and bounds that no text, list or object can meet.
package main

import (
	"log"
	"os"
	"regexp"
)

var appends = regexp.MustCompile(`(?m)^( +)appends:\n((?: +.*\n)*?)( +)x-kubernetes-preserve-unknown-fields: true\n`)

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if n := len(appends.FindAll(text, -1)); n != 4 {
		log.Fatalf("%s: appends is there %d times, not 4", os.Args[1], n)
	}
	bounds := ""
	for _, line := range []string{
		"maxItems: 0", "maxLength: 0", "maxProperties: 0", "maximum: 65535",
		"minItems: 1", "minLength: 1", "minProperties: 1", "minimum: 0", "multipleOf: 1",
	} {
		bounds += "${3}" + line + "\n"
	}
	text = appends.ReplaceAll(text, []byte("${1}appends:\n${2}"+bounds+"${3}x-kubernetes-preserve-unknown-fields: true\n"))
	if err := os.WriteFile(os.Args[1], text, 0o644); err != nil {
		log.Fatal(err)
	}
}
