package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/imports"
	"github.com/plumbline/plumbline/topology/imports/cluster"
)

func (a *app) importing() *cobra.Command {
	var files fileList
	var format string
	from := clusterFlags{}
	o := imports.Options{}
	cmd := &cobra.Command{
		Use:   "import (-f FILE | --from-cluster)",
		Short: "Convert networks of Multus and other projects",
		Long: `Converts objects of other projects to NetworkTopologies, AddressPools and
DeviceExposurePolicies, validates them, and prints them as YAML. Kinds:

  ` + strings.Join(imports.Kinds(), "\n  ") + `

A file may have several documents and lists; -f may be repeated. Objects that refer to
each other are converted together. Needs neither root nor a cluster.

--from-cluster reads the objects from the API server, with the right "list" on those of
these kinds that the cluster has; of claims and DeviceClasses only DRANET's. -n
limits networks and pods to one namespace; their references are read in all.

--pods also converts pods and workloads with the annotation k8s.v1.cni.cncf.io/networks.
Networks that build on others of a pod, such as a bond, become one topology with them. A
comment at the end has the patch of each workload.

A key that is left out is a note. A key without a counterpart is an error, and its object
is not converted.

Exit status: 0 everything was converted; 1 an object was not.`,
		Example: `  plumbline import -f network.yaml | kubectl apply -f -
  kubectl get net-attach-def -A -o yaml | plumbline import -f -
  kubectl get net-attach-def,deploy,sts -n shop -o yaml | plumbline import --pods -f -
  plumbline import --from-cluster --pods -n shop`,
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(noArgs(cmd, args), from.check(cmd, len(files)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Pods && format == formatJSON {
				return fmt.Errorf(
					"--output: %s has no comments, and --pods writes its patches as comments: leave out --pods, or --output", formatJSON)
			}
			documents, objects, err := a.toImport(cmd.Context(), files)
			if from.on {
				objects, err = a.ofCluster(cmd, from, o)
			}
			if err != nil {
				return err
			}
			o.Set = a.registry
			converted, err := imports.Convert(cmd.Context(), objects, o)
			if err != nil {
				return err
			}
			return a.printConverted(converted, format, documents)
		},
	}
	fileFlag(cmd, &files)
	cmd.Flags().Lookup("filename").Usage = "`file` with objects to convert; - is standard input"
	outputFlag(cmd, &format, formatYAML, formatJSON)
	cmd.Flags().StringVarP(&o.Namespace, "namespace", "n", "default",
		"`namespace` of objects without one; with --from-cluster the one to read, by default all")
	cmd.Flags().StringVar(&o.ResourcePrefix, "resource-prefix", "openshift.io",
		"`prefix` of resource names, RESOURCE_PREFIX of the SR-IOV operator")
	cmd.Flags().BoolVar(&o.Pods, "pods", false, "also convert networks of pods and workloads")
	cmd.Flags().BoolVar(&o.Moved, "moved", false, "all pods have left the pools: ignore recorded allocations")
	cmd.Flags().BoolVar(&from.on, "from-cluster", false, "read from a cluster, not files")
	from.of.flags(cmd, cmd.Flags())
	return cmd
}

// clusterFlags say which cluster is read.
type clusterFlags struct {
	on bool
	of kubeFlags
}

// check refuses flags that exclude each other, and none of them.
func (f *clusterFlags) check(cmd *cobra.Command, files int) error {
	help := fmt.Sprintf(": see `%s --help`", cmd.CommandPath())
	switch {
	case f.on && files > 0:
		return errors.New("--filename and --from-cluster exclude each other" + help)
	case !f.on && files == 0:
		return errors.New("name files with --filename, or read a cluster with --from-cluster" + help)
	case !f.on && f.of != kubeFlags{}:
		return errors.New("--kubeconfig and --context are only for --from-cluster" + help)
	}
	return nil
}

// toImport reads the objects of files.
func (a *app) toImport(ctx context.Context, files fileList) (documents []topology.Document, objects []map[string]any, err error) {
	for _, file := range files {
		data, name, err := a.read(ctx, file)
		if err != nil {
			return nil, nil, err
		}
		f, err := topology.Parse(name, data)
		if err != nil {
			return nil, nil, err
		}
		documents, objects = append(documents, f.Documents...), append(objects, f.Values()...)
	}
	return documents, objects, nil
}

// ofCluster reads the objects of a cluster, and says what was read: a kind that the cluster does not have may be missing
// by mistake.
func (a *app) ofCluster(cmd *cobra.Command, from clusterFlags, o imports.Options) ([]map[string]any, error) {
	config, _, err := from.of.config()
	if err != nil {
		return nil, err
	}
	reader, err := cluster.New(config, cluster.Defaults)
	if err != nil {
		return nil, err
	}
	scope := cluster.Scope{Pods: o.Pods}
	if cmd.Flags().Changed("namespace") {
		scope.Namespace = o.Namespace
	}
	found, err := reader.Read(cmd.Context(), scope)
	if err != nil {
		return nil, err
	}
	a.note("read from the cluster: %s", strings.Join(found.Read, ", "))
	if len(found.NotServed) > 0 {
		a.note("the cluster does not have the kinds %s", strings.Join(found.NotServed, ", "))
	}
	if scope.Namespace != "" && o.Pods {
		a.note("only pods of namespace %q were read, "+
			"so AddressPools do not exclude addresses that annotations of other pods name: leave out -n to read all pods", scope.Namespace)
	}
	return found.Objects, nil
}

// printConverted prints the objects, the notes, and what was not converted.
func (a *app) printConverted(r imports.Result, format string, documents []topology.Document) error {
	nothing := len(r.Objects) == 0
	for _, n := range r.Notes {
		a.note("%s", n)
	}
	if format == formatJSON {
		list := map[string]any{"apiVersion": "v1", "kind": "List", "items": r.Objects}
		if err := a.document(format, list); err != nil {
			return err
		}
		r.Objects = nil
	}
	for i, o := range r.Objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := a.out.Write(text); err != nil {
			return err
		}
	}
	for _, p := range r.Patches {
		if err := a.printPatch(p); err != nil {
			return err
		}
	}
	var errs []error
	for _, p := range r.Problems {
		err := errors.New(p.String())
		if p.Index < len(documents) { // not of a cluster
			err = documents[p.Index].At(p.Path, err)
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 && nothing {
		errs = append(errs, fmt.Errorf("nothing to convert: objects of kind %s are converted", strings.Join(imports.Kinds(), ", ")))
	}
	return errors.Join(errs...)
}

// printPatch prints what a pod needs as a comment: applied with the objects it would be refused, as it is a part of one. The prose has two
// signs, so that it stays a comment where one is removed from each line.
func (a *app) printPatch(p imports.Patch) error {
	text, err := yaml.Marshal(p.Merge)
	if err != nil {
		return err
	}
	say := "has its networks by claims with this patch, for kubectl patch --patch-file; a pod is created again with it"
	if p.Unchanged {
		say = "requests its devices already, and only loses the annotation"
	}
	lines := []string{"---", fmt.Sprintf("## %s %s:", p.Object, say)}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, "#   "+strings.TrimSuffix(line, "\n"))
	}
	_, err = fmt.Fprintln(a.out, strings.Join(lines, "\n"))
	return err
}
