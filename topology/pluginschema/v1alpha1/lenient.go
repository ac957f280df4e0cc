package v1alpha1

import (
	"encoding/json"

	"github.com/plumbline/plumbline/topology/excerpt"
)

// Properties are properties by name. The API server cannot check a recursive type, so any
// value may be stored here. A client decodes a list of objects as a whole: if one property
// were an error, no schema could be listed, no cache filled, and no claim checked. So a
// value that cannot be read is decoded as such, and refused where the schema is used.
type Properties map[string]Property

// UnmarshalJSON reads an object. It never fails.
func (p *Properties) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		*p = Properties{"": {Wrong: excerpt.Of(err.Error(), maxWrong)}}
		return nil
	}
	*p = make(Properties, len(raw))
	for name, r := range raw {
		var one Property
		if err := json.Unmarshal(r, &one); err != nil {
			one = Property{Wrong: excerpt.Of(err.Error(), maxWrong)}
		}
		(*p)[name] = one
	}
	return nil
}

// UnmarshalJSON reads an object. It never fails, see Properties.
func (i *Items) UnmarshalJSON(data []byte) error {
	type plain Items
	var p plain
	if err := json.Unmarshal(data, &p); err != nil {
		p = plain{Wrong: excerpt.Of(err.Error(), maxWrong)}
	}
	*i = Items(p)
	return nil
}

// maxWrong bounds the text of an error, in bytes.
const maxWrong = 200
