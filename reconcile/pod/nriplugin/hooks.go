package nriplugin

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plumbline/plumbline/reconcile/pod/attachment"
	"github.com/plumbline/plumbline/topology/fault"
)

// Configure implements stub.ConfigureInterface.
func (s *session) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	s.plugin.Log.Info("connected", "runtime", runtime, "version", version, "index", s.plugin.Index)
	s.configured.fire()
	return 0, nil // what the type implements
}

// Synchronize implements stub.SynchronizeInterface.
func (s *session) Synchronize(ctx context.Context, pods []*api.PodSandbox, _ []*api.Container) ([]*api.ContainerUpdate, error) {
	all := make([]attachment.Pod, len(pods))
	for i, pod := range pods {
		all[i] = podOf(pod)
	}
	p := s.plugin
	begun := p.Now()
	err := p.within(ctx, "Synchronize", "", func(context.Context) error {
		defer s.learned.fire()
		return p.Keeper.Synchronize(all)
	})
	if err != nil {
		p.Log.Error("synchronize failed", "error", err)
	}
	select {
	case <-s.synchronized.c: // the runtime has called it before
	default:
		end, ok := ctx.Deadline()
		// The messages take their time, too, the more the slower the machine.
		s.late.Store(ok && p.Now().Sub(begun) > end.Sub(begun)/2)
	}
	s.synchronized.fire()
	return nil, nil
}

// RunPodSandbox implements stub.RunPodInterface.
func (s *session) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return s.hook(ctx, "RunPodSandbox", pod, s.plugin.Keeper.Attach)
}

// CreateContainer implements stub.CreateContainerInterface.
func (s *session) CreateContainer(
	ctx context.Context, pod *api.PodSandbox, c *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return nil, nil, s.hook(ctx, "CreateContainer", pod, func(ctx context.Context, pod attachment.Pod) error {
		if err := s.plugin.Keeper.Admit(ctx, pod, c.GetEnv()); err != nil {
			return err
		}
		s.plugin.Keeper.Admitted(pod, c.GetName(), c.GetEnv())
		return nil
	})
}

// StopPodSandbox implements stub.StopPodInterface.
func (s *session) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return s.hook(ctx, "StopPodSandbox", pod, s.plugin.Keeper.Detach)
}

// RemovePodSandbox implements stub.RemovePodInterface.
func (s *session) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return s.hook(ctx, "RemovePodSandbox", pod, s.plugin.Keeper.Forget)
}

func (s *session) hook(ctx context.Context, name string, pod *api.PodSandbox, f func(context.Context, attachment.Pod) error) error {
	s.hooked.fire()
	return s.plugin.within(ctx, name, pod.GetId(), func(ctx context.Context) error { return f(ctx, podOf(pod)) })
}

// within gives a hook three quarters of the time its runtime allows, and a little more to
// answer; then the runtime is answered, and the hook continues in the background.
func (p *Plugin) within(ctx context.Context, hook, sandbox string, f func(context.Context) error) error {
	begun := p.Now()
	whole := api.DefaultPluginRequestTimeout
	if end, ok := ctx.Deadline(); ok {
		whole = end.Sub(begun)
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), whole*3/4)
	defer cancel()
	answer, cancel := context.WithTimeout(ctx, whole*9/10)
	defer cancel()
	done := make(chan error, 1)
	end := p.hooks.Begin()
	go func() {
		defer end()
		done <- f(work)
	}()
	var err error
	select {
	case err = <-done:
	case <-answer.Done():
		// f continues; the next call for the same claim waits for it.
		err = fault.New(fault.NotReady, fmt.Errorf("plumbline: %s did not finish in time and continues in the background", hook))
	}
	took := p.Now().Sub(begun)
	p.Recorder.Hook(hook, fault.Of(err), took)
	if err != nil {
		p.Log.Warn("hook failed", "hook", hook, "sandbox", sandbox, "kind", fault.Of(err),
			"took", took.Round(time.Microsecond), "error", err)
	} else {
		p.Log.Debug("hook", "hook", hook, "sandbox", sandbox, "took", took.Round(time.Microsecond))
	}
	return err
}

func podOf(pod *api.PodSandbox) attachment.Pod {
	out := attachment.Pod{
		Sandbox: pod.GetId(), UID: types.UID(pod.GetUid()), Namespace: pod.GetNamespace(), Name: pod.GetName(),
		Handler: pod.GetRuntimeHandler(),
	}
	for _, ns := range pod.GetLinux().GetNamespaces() {
		if ns.GetType() == "network" {
			out.Netns = ns.GetPath()
		}
	}
	return out
}
