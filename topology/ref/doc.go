// Package ref parses and resolves the references in a step's config:
// "{{ step.field }}", a field of the result of another step.
//
// It owns the grammar, the table of known fields with their static types, and
// the walk over a config value. It knows no topology: which step exists and
// what its result holds is the caller's resolve function.
//
//	token = "{{" [space] step "." field [ "[" index "]" ] [ "." sub ] [space] "}}"
//	      | "{{" [space] '"' text '"' [space] "}}"
//
// The first form stands for the field. One that is the whole value keeps the
// field's type; inside a longer string it becomes text. The second form stands
// for text itself and is how a literal "{{" is written: {{ "{{" }}. Single
// braces and a lone "}}" are ordinary text. Only values hold references, never
// map keys.
//
// Parse is the way in for one string, Walk and Expand for a whole config.
package ref
