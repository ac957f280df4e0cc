package pluginschema_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/plumbline/plumbline/topology/pluginschema"
	"github.com/plumbline/plumbline/topology/pluginschema/v1alpha1"
)

// TestOneUnreadable holds that a schema which the CRD accepts and clients cannot read is
// refused alone: its list, and the other schemas, are read.
func TestOneUnreadable(t *testing.T) {
	for spec, want := range map[string]string{
		`"output": {"interfaces": {"appends": 70000}}`:                  `output.interfaces.appends: want a number of entries from 0 to 65535, or a boolean`,
		`"output": {"ips": {"appends": {"a": 1}}}`:                      `output.ips.appends: want a number`,
		`"output": {"routes": {"appends": -2}}`:                         `output.routes.appends: want a number`,
		`"output": {"devices": {"appends": "x"}}`:                       `output.devices.appends: want a number`,
		parameter(`"type": "object", "properties": {"p": 5}`):           `configParameters.optional[k].p: cannot be read: json: `,
		parameter(`"type": "object", "properties": {"p": {"type": 5}}`): `configParameters.optional[k].p: cannot be read: json: `,
		parameter(`"type": "object", "properties": [1]`):                `configParameters.optional[k].: cannot be read: json: `,
		parameter(`"type": "[]string", "items": {"enum": "x"}`):         `configParameters.optional[k][]: cannot be read: json: `,
		parameter(`"type": "[]string", "items": {"minItems": 1e99}`):    `configParameters.optional[k][]: cannot be read: json: `,
		parameter(`"type": "[][]string", "items": {"items": 7}`):        `configParameters.optional[k][][]: cannot be read: json: `,
	} {
		list := decodeList(t, spec)
		if _, err := pluginschema.Contract(&list.Items[0]); err != nil {
			t.Errorf("%s: the other one: %v", spec, err)
		}
		_, err := pluginschema.Contract(&list.Items[1])
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %s...", spec, err, want)
		}
		if _, err := json.Marshal(list); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func parameter(property string) string {
	return `"configParameters": {"optional": [{"name": "k", ` + property + `}]}`
}

func decodeList(t *testing.T, spec string) v1alpha1.CNIPluginSchemaList {
	t.Helper()
	var list v1alpha1.CNIPluginSchemaList
	if err := json.Unmarshal([]byte(`{"items": [{"spec": {"cniType": "a"}}, {"spec": {"cniType": "b", `+spec+`}}]}`), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestBoundedSchema holds that reading a schema, and refusing it, stays within
// bounds below the level the API server checks.
func TestBoundedSchema(t *testing.T) {
	properties := func(format string, n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(format, i)
		}
		return parameter(`"type": "object", "properties": {` + strings.Join(all, ",") + `}`)
	}
	words := strings.TrimSuffix(strings.Repeat(`"w",`, 100_000), ",")
	for name, spec := range map[string]string{
		"unknown types":   properties(`"p%d": {"type": "`+strings.Repeat("t", 50_000)+`"}`, 20),
		"many parameters": properties(`"p%d": {"type": "string"}`, 50_000),
		"many mistakes":   properties(`"p%d": {"type": "x"}`, 50_000),
		"long names":      properties(`"`+strings.Repeat("n", 10_000)+`%d": {"type": "string"}`, 100),
		"many words":      properties(`"p%d": {"type": "string", "enum": [`+words+`]}`, 2),
		"many aliases":    properties(`"p%d": {"type": "string", "aliases": [`+words+`]}`, 2),
		"deep":            parameter(`"type": "` + strings.Repeat("[]", 5000) + `string"`),
	} {
		t.Run(name, func(t *testing.T) {
			list := decodeList(t, spec)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := pluginschema.Contract(&list.Items[1])
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatal("accepted")
			}
			if n := len(err.Error()); n > 128<<10 {
				t.Errorf("the answer has %d bytes", n)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("allocates %d bytes", n)
			}
		})
	}
}
