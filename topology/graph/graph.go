package graph

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/plumbline/plumbline/topology"
)

// The formats.
const (
	Mermaid = "mermaid"
	Dot     = "dot"
	SVG     = "svg"
)

// The statuses with a colour of their own. Any other status is shown as broken.
const (
	OK      = "ok"
	Pending = "pending"
)

// Formats returns the known formats.
func Formats() []string { return []string{Mermaid, Dot, SVG} }

// Status is the status of a step.
type Status struct {
	Word  string   // see OK; shown behind the type
	Notes []string // problems, a line each; shown below
}

// Render draws a topology. status holds what is known of each step; steps without one are
// coloured by whether they are root steps. The topology's graph must be valid.
func Render(t *topology.Topology, format string, status map[string]Status) (string, error) {
	g, err := newPicture(t, status)
	if err != nil {
		return "", err
	}
	switch format {
	case Mermaid:
		return g.mermaid(), nil
	case Dot:
		return g.dot(), nil
	case SVG:
		return g.svg(), nil
	default:
		return "", fmt.Errorf("unknown format %q: known formats are %s", format, strings.Join(Formats(), ", "))
	}
}

// picture is the drawing that all formats share.
type picture struct {
	name  string
	nodes []node   // in order of declaration
	edges [][2]int // from a dependency to its dependent
}

type node struct {
	name   string
	detail string // type, and status if any
	notes  []string
	class  class
}

// class is the style of a node.
type class struct {
	name               string
	fill, stroke, text string
}

// The nodes have dark text on a light background of their own, so they do not depend on the
// page's.
var (
	root    = class{"root", "#ddf4ff", "#0969da", "#0a3069"}
	derived = class{"derived", "#f6f8fa", "#6e7781", "#24292f"}
	good    = class{"ok", "#dafbe1", "#1a7f37", "#044f1e"}
	pending = class{"pending", "#fff8c5", "#9a6700", "#4d2d00"}
	broken  = class{"broken", "#ffebe9", "#cf222e", "#82071e"}
)

// edgeColour is legible on white and on black.
const edgeColour = "#848d97"

func newPicture(t *topology.Topology, status map[string]Status) (picture, error) {
	if _, err := topology.Order(t); err != nil {
		return picture{}, err
	}
	p := picture{name: oneLine(t.Name)}
	index := map[string]int{}
	for i := range t.Steps {
		s := &t.Steps[i]
		index[s.Name] = i
		n := node{name: oneLine(s.Name), detail: oneLine(s.Type), class: derived}
		if s.Root() {
			n.class = root
		}
		if word := oneLine(status[s.Name].Word); word != "" {
			n.detail += ": " + word
			n.class = classOf(word)
		}
		for _, note := range status[s.Name].Notes {
			n.notes = append(n.notes, oneLine(note))
		}
		p.nodes = append(p.nodes, n)
	}
	for i := range t.Steps {
		for _, d := range t.Steps[i].DependOn {
			p.edges = append(p.edges, [2]int{index[d], i})
		}
	}
	return p, nil
}

func classOf(word string) class {
	switch word {
	case OK:
		return good
	case Pending:
		return pending
	default:
		return broken
	}
}

// classes returns the classes in use, in a fixed order.
func (p picture) classes() []class {
	return slices.DeleteFunc([]class{root, derived, good, pending, broken}, func(c class) bool {
		return !slices.ContainsFunc(p.nodes, func(n node) bool { return n.class == c })
	})
}

// oneLine keeps a label on one line.
func oneLine(s string) string {
	const limit = 80
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strings.TrimSpace(s)
}
