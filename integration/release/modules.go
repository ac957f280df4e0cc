package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// describeModules writes which modules are in the programs, and their licences.
func (r release) describeModules(ctx context.Context) error {
	modules := map[string]string{}
	for _, architecture := range architectures {
		for _, program := range programs {
			info, err := buildinfo.ReadFile(r.program(program, architecture))
			if err != nil {
				return err
			}
			modules["std"] = strings.TrimPrefix(info.GoVersion, "go")
			for _, m := range info.Deps {
				modules[m.Path] = cmp.Or(m.Replace, m).Version
			}
		}
	}
	texts, err := r.licences(ctx)
	if err != nil {
		return err
	}
	bill := newBill(r.version)
	var all strings.Builder
	fmt.Fprintf(&all, "Modules that are linked into plumbline %s, with their licences.\n", r.version)
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		texts := texts[name]
		kinds, err := kindsOf(texts)
		if err != nil {
			return fmt.Errorf("module %q: %w", name, err)
		}
		bill.add(name, modules[name], kinds)
		fmt.Fprintf(&all, "\n%s\n%s %s\n", strings.Repeat("=", 80), name, modules[name])
		for _, file := range slices.Sorted(maps.Keys(texts)) {
			fmt.Fprintf(&all, "\n--- %s\n\n%s\n", file, strings.TrimSpace(texts[file]))
		}
	}
	if err := r.write("licenses.txt", all.String()); err != nil {
		return err
	}
	content, err := json.MarshalIndent(bill, "", "  ")
	if err != nil {
		return err
	}
	return r.write("sbom.cdx.json", string(content)+"\n")
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|notice|patents)([.-].*)?$`)

// licences returns the texts for each module of which a package is linked: those in the folders of
// these packages, and in the folders that they lie in, by name.
func (r release) licences(ctx context.Context) (map[string]map[string]string, error) {
	type pkg struct {
		Dir    string
		Goroot bool
		Module *struct {
			Path, Dir string
			Main      bool
		}
	}
	goroot, err := r.run(ctx, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	out := map[string]map[string]string{}
	for _, architecture := range architectures {
		arguments := []string{"list", "-deps", "-json=Dir,Goroot,Module"}
		for _, program := range programs {
			arguments = append(arguments, "./cmd/"+program)
		}
		listed, err := r.run(ctx, platform(architecture), "go", arguments...)
		if err != nil {
			return nil, err
		}
		for decoder := json.NewDecoder(strings.NewReader(listed)); ; {
			var p pkg
			if err := decoder.Decode(&p); err == io.EOF {
				break
			} else if err != nil {
				return nil, err
			}
			name, root := "std", strings.TrimSpace(goroot)
			switch {
			case p.Goroot:
				// Go's own licence is that of all of it; what lies deeper is for files that are not linked.
				p.Dir = root
			case p.Module == nil:
				return nil, fmt.Errorf("%q belongs to no module", p.Dir)
			case p.Module.Main:
				continue
			default:
				name, root = p.Module.Path, p.Module.Dir
			}
			if out[name] == nil {
				out[name] = map[string]string{}
			}
			if err := collect(out[name], root, p.Dir); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// collect adds the licences in a folder, and in those above up to root.
func collect(texts map[string]string, root, folder string) error {
	for {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(root, folder)
		if err != nil || strings.HasPrefix(inside, "..") {
			return fmt.Errorf("%q is not in %q", folder, root)
		}
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			texts[path.Join(filepath.ToSlash(inside), e.Name())] = string(content)
		}
		if inside == "." {
			return nil
		}
		folder = filepath.Dir(folder)
	}
}

// kinds have the words that only texts of one licence contain, and its name (https://spdx.org/licenses).
// Nothing else may be linked before somebody has read its licence.
var kinds = []struct{ words, name string }{
	{"apache license version 2.0", "Apache-2.0"},
	{"mozilla public license version 2.0", "MPL-2.0"},
	{"permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"},
	{"permission to use, copy, modify, and/or distribute this software for any purpose", "ISC"},
	{"permission to use, copy, modify, and distribute this software for any purpose", "ISC"},
}

const (
	berkeley = "redistribution and use in source and binary forms, with or without modification, are permitted"
	third    = "neither the name"
)

// kindsOf returns the names of licences.
func kindsOf(texts map[string]string) ([]string, error) {
	found := map[string]bool{}
	for file, text := range texts {
		base := strings.ToLower(path.Base(file))
		if strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue // beside a licence
		}
		text = string(bytes.Join(bytes.Fields(bytes.ToLower([]byte(text))), []byte(" ")))
		known := false
		for _, k := range kinds {
			if strings.Contains(strings.ReplaceAll(text, ",", ""), strings.ReplaceAll(k.words, ",", "")) {
				found[k.name], known = true, true
			}
		}
		if strings.Contains(text, berkeley) {
			known = true
			if strings.Contains(text, third) {
				found["BSD-3-Clause"] = true
			} else {
				found["BSD-2-Clause"] = true
			}
		}
		if !known {
			return nil,
				fmt.Errorf("%s: the licence is unknown: read it, and add its words to kinds in integration/release/modules.go", file)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no licence was found in the module: do not link it")
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// bill is a bill of materials (https://cyclonedx.org/docs/1.6/json). It has no serial number and no
// time, so that it has the same bytes each time.
type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Licenses []licence `json:"licenses"`
	PURL     string    `json:"purl"`
}

type licence struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

func newComponent(kind, name, version string, licences []string) component {
	// https://github.com/package-url/purl-spec/blob/main/types-doc/golang-definition.md
	purl := "pkg:golang/" + name + "@" + strings.ReplaceAll(version, "+", "%2B")
	c := component{Type: kind, Ref: purl, Name: name, Version: version, PURL: purl}
	for _, id := range licences {
		var l licence
		l.License.ID = id
		c.Licenses = append(c.Licenses, l)
	}
	return c
}

func newBill(version string) *bill {
	return &bill{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: metadata{newComponent("application", module, version, []string{"Apache-2.0"})},
	}
}

func (b *bill) add(name, version string, licences []string) {
	b.Components = append(b.Components, newComponent("library", name, version, licences))
}
