package topology

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/plumbline/plumbline/topology/contract"
	"github.com/plumbline/plumbline/topology/excerpt"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// FilesDir is where containers find the files of topologies: those of each in a folder of its name.
const FilesDir = "/var/run/dra.networking/files"

// Bounds of spec.export.files. The first two are as in the CRD. The files are in the memory of the node.
const (
	maxFiles     = 16
	maxFileText  = 16384    // characters as written
	maxFileSize  = 64 << 10 // bytes of one file
	MaxFilesSize = 256 << 10
)

// fileName is the form of names of files: none leads out of its folder, and none is hidden.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$`)

func fileField(name string) string { return "spec.export.files." + excerpt.Of(name, maxKey) }

// exportFiles checks the names and references of files.
func (v *validator) exportFiles(files map[string]v1alpha1.ExportContent) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at := fileField(name)
		if !fileName.MatchString(name) {
			v.inv.Addf("", at, "%q is not a name of a file: letters, digits, '_', '-' and '.', no '-' or '.' first, 63 characters at most",
				excerpt.Of(name, maxKey))
		}
		text := string(files[name])
		if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) {
			v.inv.Addf("", at, "has a control character other than the ends of lines and tabs: remove it")
			continue
		}
		for _, problem := range v.exportProblems(text) {
			v.inv.Addf("", at, "%s", problem)
		}
	}
}

// File is a file that containers are given.
type File struct {
	Name    string `json:"name"`
	Content string `json:"content,omitempty"`
	// Needs says what the content depends on that is not known yet, as "vf0.mac"; Content is empty then.
	Needs string `json:"needs,omitempty"`
}

// Files returns the files that containers are given, by name, as Variables does the variables. devices returns the topology file of
// NCCL for devices with these PCI addresses, and those of RDMA devices by name; nil without a node.
func (t *Topology) Files(set contract.Set, results []StepResult, devices func(pci, rdma []string) (string, error)) ([]File, error) {
	if t.Export == nil {
		return nil, nil
	}
	of := resultsOf(t, results)
	files := map[string]File{}
	var errs []error
	if slices.Contains(t.Export.Presets, v1alpha1.ExportNCCLTopology) {
		f := File{Name: topologyFile, Needs: t.without(of)}
		switch {
		case f.Needs != "":
		case devices == nil:
			f.Needs = "the PCI devices of a node"
		default:
			var err error
			if f.Content, err = devices(of.pci(t.Roots()), of.rdma("")); err != nil {
				errs = append(errs, fmt.Errorf("spec.export.presets: %s: %w", v1alpha1.ExportNCCLTopology, err))
			}
		}
		files[f.Name] = f
	}
	for name, text := range t.Export.Files {
		content, needs, err := t.told(set, of, string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", fileField(name), err))
		}
		files[name] = File{name, content, needs}
	}
	var out []File
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if n := len(files[name].Content); n > maxFileSize {
			errs = append(errs, fmt.Errorf("spec.export: file %s has %d bytes, at most %d are accepted", name, n, maxFileSize))
		}
		out = append(out, files[name])
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(errs...)
	}
	return out, nil
}
