package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing/fstest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/integration/image"
)

const namespace = "plumbline-system"

// settings are the lines of the chart that a release sets, by file.
func (r release) settings() map[string]map[string]string {
	return map[string]map[string]string{
		"Chart.yaml":  {`^version: .*`: "version: " + strings.TrimPrefix(r.version, "v"), `^appVersion: .*`: "appVersion: " + r.version},
		"values.yaml": {`^  repository: .*`: "  repository: " + r.image()},
	}
}

// writeChart writes the chart as an archive, as an OCI artifact, and as install.yaml, in which the
// image has a digest.
func (r release) writeChart(ctx context.Context, digest string) error {
	files, err := r.chart()
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	var archive bytes.Buffer
	// helm package does not do: it writes the time into the archive.
	compressed, err := gzip.NewWriterLevel(&archive, gzip.BestCompression)
	if err == nil {
		err = errors.Join(image.Tar(compressed, files, "plumbline"), compressed.Close())
	}
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	number := strings.TrimPrefix(r.version, "v")
	name := "plumbline-" + number + ".tgz"
	if err := r.write(name, archive.String()); err != nil {
		return err
	}
	artifact, err := newArtifact(files["Chart.yaml"].Data, archive.Bytes())
	if err == nil {
		err = image.WriteLayout(r.path("plumbline-"+r.version+"-chart.tar"),
			image.Named{Name: r.registry + "/charts/plumbline:" + number, What: artifact})
	}
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return r.writeManifest(ctx, r.path(name), digest)
}

// chart is the chart of the checkout with what the release sets.
func (r release) chart() (fstest.MapFS, error) {
	folder := filepath.Join(r.checkout, "chart", "plumbline")
	files := fstest.MapFS{}
	err := fs.WalkDir(os.DirFS(folder), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(folder, name))
		files[name] = &fstest.MapFile{Data: content, Mode: 0o644}
		return err
	})
	if err != nil {
		return nil, err
	}
	for name, lines := range r.settings() {
		for pattern, line := range lines {
			find := regexp.MustCompile("(?m)" + pattern)
			if n := len(find.FindAll(files[name].Data, -1)); n != 1 {
				return nil, fmt.Errorf("%s: want one line %q, have %d", name, pattern, n)
			}
			files[name].Data = find.ReplaceAllLiteral(files[name].Data, []byte(line))
		}
	}
	return files, nil
}

// writeManifest writes install.yaml.
func (r release) writeManifest(ctx context.Context, chart, digest string) error {
	chart, err := filepath.Abs(chart)
	if err != nil {
		return err
	}
	var metadata struct {
		KubeVersion string `json:"kubeVersion"`
	}
	content, err := os.ReadFile(filepath.Join(r.checkout, "chart", "plumbline", "Chart.yaml"))
	if err == nil {
		err = yaml.Unmarshal(content, &metadata)
	}
	if err != nil {
		return err
	}
	oldest := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(metadata.KubeVersion)
	rendered, err := r.run(ctx, nil, r.helm, "template", "plumbline", chart, "--namespace", namespace, "--kube-version", oldest,
		"--skip-tests", "--set", "image.digest="+digest)
	if err != nil {
		return err
	}
	return r.write("install.yaml", fmt.Sprintf(`# plumbline %s for Kubernetes %s: kubectl apply --server-side -f install.yaml
# Made from the chart with its default values; the chart has more.
apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels:
    # The agent has capabilities, and directories of the host.
    pod-security.kubernetes.io/enforce: privileged
%s`, r.version, metadata.KubeVersion, namespace, rendered))
}

// artifact is a chart in a registry
// (https://helm.sh/docs/topics/registries/#helm-chart-manifest).
type artifact struct {
	config, manifest []byte
	layer            v1.Layer
}

func newArtifact(metadata, archive []byte) (v1.Image, error) {
	config, err := yaml.YAMLToJSON(metadata)
	if err != nil {
		return nil, err
	}
	a := artifact{config: config, layer: static.NewLayer(archive, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")}
	layer, err := partial.Descriptor(a.layer)
	if err != nil {
		return nil, err
	}
	hash, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	a.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2,
		MediaType:     types.OCIManifestSchema1,
		Config:        v1.Descriptor{MediaType: "application/vnd.cncf.helm.config.v1+json", Size: size, Digest: hash},
		Layers:        []v1.Descriptor{*layer},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

func (a artifact) RawConfigFile() ([]byte, error)    { return a.config, nil }
func (a artifact) RawManifest() ([]byte, error)      { return a.manifest, nil }
func (artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest implements partial.CompressedImageCore. The configuration counts as a layer.
func (a artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if digest, err := a.layer.Digest(); err != nil || digest == h {
		return a.layer, err
	}
	return nil, fmt.Errorf("no layer %s: %w", h, io.EOF)
}
