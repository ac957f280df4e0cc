// Package image builds container images of static programs, without a daemon, a
// registry or a base: a layer of some files and what to run.
//
// The ways in are [Image.Build], an image of one platform, [Index], one of
// several, and [WriteFile], which writes an OCI image layout into an archive that
// containerd imports. The same content gives the same bytes, so that an
// archive's hash shows whether anything changed.
package image
