// Package ref parses and resolves the references in a step's config:
// "{{ step.field }}", a field of the result of another step.
//
// It owns the grammar, the table of known fields with their static types, and the walk over
// a config value. It knows no topology: the caller's resolve function knows which steps
// exist and what their results hold.
//
//	token = "{{" [space] step "." field [ "[" index "]" ] [ "." sub ] [space] "}}"
//	      | "{{" [space] '"' text '"' [space] "}}"
//
// The first form is replaced by the field. One that is the whole value keeps the field's
// type; inside a longer string it becomes text. The second form is replaced by its text and
// is how a literal "{{" is written: {{ "{{" }}. Single braces and a lone "}}" are ordinary
// text. Only values hold references, never map keys. Parse reads one string, Walk and
// Expand a whole config.
package ref
