package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/plumbline/plumbline/topology"
)

// maxDepth bounds the nesting of JSON within a string.
const maxDepth = 16

// parse takes the JSON that a key has as a string. A comma before a closing bracket is accepted, and noted: programs differ
// about it. before and after are added to the text.
func (r *record) parse(key, before, after string) (any, bool) {
	if _, isObject := r.left[key].(map[string]any); isObject {
		r.take(key)
		r.problem(key, "want JSON in a string, got an object: put it in quotes, as in '{\"type\": \"macvlan\"}'")
		return nil, false
	}
	text := r.text(key)
	if strings.TrimSpace(text) == "" {
		return nil, false
	}
	clean, commas := withoutTrailing(before + text + after)
	v, err := decode(clean)
	if err != nil {
		r.problem(key, "is not JSON: %v", err)
		return nil, false
	}
	if commas {
		r.note(key, "has a comma before a closing bracket, which is not JSON: it was ignored")
	}
	return topology.Exact(v), true
}

// parseObject is parse for an object, whose path is that of the key.
func (r *record) parseObject(key string) (*record, bool) {
	v, ok := r.parse(key, "", "")
	if !ok {
		return nil, false
	}
	object, isObject := v.(map[string]any)
	if !isObject {
		r.problem(key, "is not a JSON object")
		return nil, false
	}
	return r.below(r.path(key), object), true
}

// withoutTrailing removes commas that only white space separates from a closing bracket.
func withoutTrailing(text string) (out string, found bool) {
	var b strings.Builder
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\' && i+1 < len(text):
			b.WriteByte(c)
			i++
		case c == '"':
			inString = !inString
		case c == ',' && !inString:
			rest := strings.TrimLeft(text[i+1:], " \t\r\n")
			if strings.HasPrefix(rest, "}") || strings.HasPrefix(rest, "]") {
				found = true
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String(), found
}

// decode reads JSON and refuses a key that an object has twice, of which one would be lost.
func decode(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the value")
	}
	return v, nil
}

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	token, err := dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		out := map[string]any{}
		for dec.More() {
			token, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key, _ := token.(string) // the decoder accepts nothing else
			if _, twice := out[key]; twice {
				return nil, fmt.Errorf("key %q is given twice", key)
			}
			if out[key], err = decodeValue(dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for dec.More() {
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err := dec.Token()
		return out, err
	}
	return token, nil
}
