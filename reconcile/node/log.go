package node

import (
	"fmt"
	"strings"

	"github.com/plumbline/plumbline/reconcile"
	"github.com/plumbline/plumbline/topology/fault"
)

// reportOtherVersions counts the records of other versions, and logs each once.
func (l *Loop) reportOtherVersions() {
	others := l.OtherVersions()
	l.Recorder.OtherVersions(len(others))
	l.mu.Lock()
	before := l.others
	l.others = map[string]error{}
	for _, o := range others {
		l.others[o.Path] = o
	}
	l.mu.Unlock()
	for _, o := range others {
		if !fault.SameText(before[o.Path], o) {
			l.Log.Warn("record of another version", "file", o.Path, "error", o)
		}
	}
}

// logOnce logs the error of a sandbox, once until there is another error.
func (l *Loop) logOnce(id reconcile.SandboxID, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	isNew := l.logged[id] != text
	if l.logged[id] = text; text == "" {
		delete(l.logged, id)
	}
	l.mu.Unlock()
	switch {
	case text == "":
	case isNew:
		l.Log.Warn("reconcile failed", "sandbox", id, "kind", fault.Of(err), "error", err)
	default:
		l.Log.Debug("reconcile still fails", "sandbox", id, "kind", fault.Of(err), "error", err)
	}
}

// describe lists what drifted, without the values: they may change every time.
func describe(drift []reconcile.Drift) string {
	var out []string
	for _, d := range drift {
		text := fmt.Sprintf("step %q: %s", d.Step, d.Object)
		if d.Field != "" {
			text += " " + d.Field
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}
