package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The chart of a release has its version and the repository of its image; all else is that of the checkout.
func TestChart(t *testing.T) {
	r := release{version: "v1.2.3-rc.1", registry: "registry.test/net", checkout: "../.."}
	files, err := r.chart()
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string][]string{}
	folder := os.DirFS("../../chart/plumbline")
	if err := fstest.TestFS(files, "Chart.yaml", "values.yaml", "templates/NOTES.txt"); err != nil {
		t.Error(err)
	}
	for name, file := range files {
		original, err := fs.ReadFile(folder, name)
		if err != nil {
			t.Fatal(err)
		}
		before := strings.Split(string(original), "\n")
		for i, line := range strings.Split(string(file.Data), "\n") {
			if line != before[i] {
				changed[name] = append(changed[name], line)
			}
		}
	}
	want := map[string][]string{
		"Chart.yaml":  {"version: 1.2.3-rc.1", "appVersion: v1.2.3-rc.1"},
		"values.yaml": {"  repository: registry.test/net/plumbline"},
	}
	for name, lines := range want {
		if got := strings.Join(changed[name], "\n"); got != strings.Join(lines, "\n") {
			t.Errorf("%s: want the changed lines %q, have %q", name, lines, got)
		}
		delete(changed, name)
	}
	if len(changed) > 0 {
		t.Errorf("changed, too: %q", changed)
	}
}

func TestArtifact(t *testing.T) {
	chart, err := newArtifact([]byte("name: plumbline\nversion: 0.1.0\n"), []byte("archive"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := chart.RawConfigFile()
	if err != nil || string(config) != `{"name":"plumbline","version":"0.1.0"}` {
		t.Errorf("configuration: %s, %v", config, err)
	}
	manifest, err := chart.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Layers) != 1 || manifest.Layers[0].Size != int64(len("archive")) {
		t.Errorf("layers: %+v", manifest.Layers)
	}
	if err := validate.Image(chart, validate.Fast); err != nil {
		t.Error(err)
	}
}

// Arguments are refused before anything is compiled.
func TestRefusals(t *testing.T) {
	for _, version := range []string{"", "0.1.0", "v0.1", "v01.0.0", "v0.1.0+build", "v0.1.0/x", "latest"} {
		r := release{version: version, revision: "x", registry: "x", helm: "x", folder: filepath.Join(t.TempDir(), "out")}
		if err := r.build(t.Context()); err == nil || !strings.Contains(err.Error(), "v0.1.0") {
			t.Errorf("version %q: %v", version, err)
		}
		if _, err := os.Stat(r.folder); err == nil {
			t.Errorf("version %q: something was written", version)
		}
	}
	for _, registry := range []string{"ghcr.io/Plumbline", "https://ghcr.io/plumbline", "ghcr.io/plumbline:5", "ghcr.io/a b"} {
		r := release{version: "v0.1.0", revision: "x", registry: registry, helm: "x", folder: filepath.Join(t.TempDir(), "out")}
		if err := r.build(t.Context()); err == nil || !strings.Contains(err.Error(), "registry.example.com/net") {
			t.Errorf("registry %q: %v", registry, err)
		}
	}
}

// A release takes the place of an earlier one, and of nothing else.
func TestFolder(t *testing.T) {
	r := release{folder: t.TempDir()}
	files := func(names ...string) {
		for _, name := range names {
			if err := os.WriteFile(r.path(name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	earlier := []string{"plumbline-0.2.0-rc.1.tgz", "plumbline-v0.2.0-rc.1-chart.tar", "plumbline-v0.2.0-rc.1-image.tar", "install.yaml", "sbom.cdx.json", "licenses.txt", "SHA256SUMS"}
	files(earlier...)
	files("plumbline-linux-amd64", "plumbline-cni-linux-arm64")
	if err := os.Mkdir(r.path("plumbline-v0.2.0-rc.1-image.tar.1234567"), 0o755); err != nil { // of a build that was killed
		t.Fatal(err)
	}
	if err := r.clean(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]bool{"plumbline-linux-amd64": true, "plumbline-cni-linux-arm64": true, "install.yaml": false, "plumbline-0.2.0-rc.1.tgz": false, "plumbline-v0.2.0-rc.1-image.tar.1234567": false} {
		if _, err := os.Stat(r.path(name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	files("install.yaml", "letters.txt")
	if err := r.clean(); err == nil || !strings.Contains(err.Error(), `"letters.txt", which is not of a release`) {
		t.Errorf("a folder with other files: %v", err)
	}
	for _, name := range []string{"install.yaml", "letters.txt"} {
		if _, err := os.Stat(r.path(name)); err != nil {
			t.Error(err)
		}
	}
}

func TestLicences(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                                                                       "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person\nobtaining a copy of":                                                   "MIT",
		"Redistribution and use in source and binary forms, with or without\nmodification, are permitted provided that: Neither the name of": "BSD-3-Clause",
		"Redistribution and use in source and binary forms, with or without modification, are permitted":                                     "BSD-2-Clause",
		"Mozilla Public License, version 2.0":                                                                                                "MPL-2.0",
	} {
		kinds, err := kindsOf(map[string]string{"LICENSE": text, "NOTICE": "made by"})
		if err != nil || len(kinds) != 1 || kinds[0] != want {
			t.Errorf("%q: want %s, have %v, %v", text, want, kinds, err)
		}
	}
	for _, texts := range []map[string]string{
		{}, {"NOTICE": "made by"}, {"LICENSE": "GNU General Public License"},
	} {
		if kinds, err := kindsOf(texts); err == nil {
			t.Errorf("%v: want a refusal, have %v", texts, kinds)
		}
	}
	folder := t.TempDir()
	inside := filepath.Join(folder, "a", "b")
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"LICENSE", "a/LICENSE.txt", "a/license.go", "a/b/COPYING", "a/b/c"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	texts := map[string]string{}
	if err := collect(texts, folder, inside); err != nil {
		t.Fatal(err)
	}
	if len(texts) != 3 || texts["LICENSE"] == "" || texts["a/LICENSE.txt"] == "" || texts["a/b/COPYING"] == "" {
		t.Errorf("found %v", texts)
	}
}

func TestBill(t *testing.T) {
	b := newBill("v1.2.3")
	b.add("example.test/a", "v0.1.0+incompatible", []string{"MIT", "Apache-2.0"})
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	if err := encoder.Encode(b.Components); err != nil {
		t.Fatal(err)
	}
	want := `[{"type":"library","bom-ref":"pkg:golang/example.test/a@v0.1.0%2Bincompatible","name":"example.test/a","version":"v0.1.0+incompatible",` +
		`"licenses":[{"license":{"id":"MIT"}},{"license":{"id":"Apache-2.0"}}],"purl":"pkg:golang/example.test/a@v0.1.0%2Bincompatible"}]` + "\n"
	if got.String() != want {
		t.Errorf("want %s, have %s", want, got.String())
	}
}
