// Command release builds all that is installed of a version, and pushes it to a registry:
// what make release and make push run.
//
//	release build -version v0.1.0 -revision COMMIT -registry REGISTRY -helm PROGRAM FOLDER
//	release push FOLDER
//
// The folder then has
//
//   - the programs, static, for each architecture;
//   - plumbline-VERSION-image.tar, the image for all architectures: an OCI image
//     layout that containerd imports;
//   - plumbline-VERSION.tgz, the chart, and plumbline-VERSION-chart.tar, the same as an OCI
//     artifact;
//   - install.yaml for kubectl apply: the chart with its default values, its image by
//     digest;
//   - sbom.cdx.json, the modules in the programs, as CycloneDX;
//   - licenses.txt, the licences of all that is linked into the programs; the image has it, too;
//   - SHA256SUMS of these files.
//
// The same checkout and Go version give the same bytes in any folder and at any time. It
// refuses a dependency whose licence it does not know.
package main
